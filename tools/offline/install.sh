#!/bin/sh
# Install localchat from this folder: sh install.sh [TARGET]. PYTHON names another interpreter.
exec "${PYTHON:-python3}" "$(dirname "$0")/install.py" "$@"
