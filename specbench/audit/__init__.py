"""Whether a server with speculation gives the text of its model: requests, tests, causes, certificate."""
