//go:build tools

// Package peers names the programs this module builds, so that `go mod tidy` keeps their dependencies.
package peers

import (
	_ "github.com/brancz/kube-rbac-proxy/cmd/kube-rbac-proxy"
)
