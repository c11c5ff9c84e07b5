"""Lines of Anthropic and OpenAI batches: parsers and encoders.

``api.background.batch_lines`` reads the lines and the stored answers.
"""
