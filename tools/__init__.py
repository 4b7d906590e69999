"""Programs for developers of localchat, which are not installed with it."""
