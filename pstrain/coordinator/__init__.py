"""The coordinator: schedules closures on trainers."""
