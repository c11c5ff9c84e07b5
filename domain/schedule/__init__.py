"""Schedules: jobs that are submitted again and again, by cron expressions with a time zone."""
