"""The native dialect: ``/v1/jobs``, the streams of jobs, and the webhooks that report ends."""
