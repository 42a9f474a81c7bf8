"""Messages between ranks: communicators, channels, and the requests for rows that owners answer."""
