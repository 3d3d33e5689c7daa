"""Pages as data: each view is a pure function of state and now; templates and JSON show the same page."""
