"""Laws and maps as values; networks come as arguments and are never built here."""
