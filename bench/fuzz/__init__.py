"""Bad requests by the thousand: is every answer a typed one, and does memory stay flat?"""
