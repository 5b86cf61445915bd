"""What the outside sees: one struct per noun, for API answers, clients, commands' JSON and OpenAPI."""
