"""What the notes say wrongly, each beside what is right: negative controls of the identities."""
