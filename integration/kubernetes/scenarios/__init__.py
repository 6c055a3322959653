"""What is played in the test cluster, by topic."""
