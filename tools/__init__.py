"""Programs for those who build or change localchat; none of them is installed with it."""
