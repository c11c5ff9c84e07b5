"""Work outside a request: batch driver, webhook sender, periodic tasks, rates and forecasts."""
