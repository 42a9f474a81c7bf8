"""Ids to unique ids, query ids and locations."""
