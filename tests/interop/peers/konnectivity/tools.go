//go:build tools

// Package peers names the programs this module builds, so that `go mod tidy` keeps their dependencies.
package peers

import (
	_ "sigs.k8s.io/apiserver-network-proxy/cmd/agent"
	_ "sigs.k8s.io/apiserver-network-proxy/cmd/server"
)
