"""Makes any failing case small: structure first, then ids, then every axis towards its plainest value."""
