"""From a population to new weights: population, estimators, rules, and the step that joins them."""
