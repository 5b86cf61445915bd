"""The only package that imports a Kubernetes client; other packages use its `pod` without the client."""
