"""`python -m monge` is `monge`."""

from .cli.main import main

main()
