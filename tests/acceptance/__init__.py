"""Cases from the field: each has an id, a test of its own, and a trap that the test keeps us out of."""
