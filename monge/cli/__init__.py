"""The command line: a verb is a file of this folder."""
