"""The report: what it says of a run, a calibration or a design, as data, and the page that they become."""
