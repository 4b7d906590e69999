# Claude Code: . examples/configuration/claude-code.sh && claude
export ANTHROPIC_BASE_URL=http://127.0.0.1:8080
export ANTHROPIC_AUTH_TOKEN=none
export ANTHROPIC_MODEL=local ANTHROPIC_SMALL_FAST_MODEL=local
