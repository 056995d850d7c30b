"""Series: measurements of several channels over time, such as sensors or ECGs."""
