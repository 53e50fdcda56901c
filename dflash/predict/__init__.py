"""What a change costs before it is made: simulation, calibration, comparison of plans, advice. No torch."""
