"""One file is one model; the folder is the registry."""
