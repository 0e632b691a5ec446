//go:build tools

// Package peers names the programs this module builds, so that `go mod tidy` keeps their dependencies.
package peers

import (
	_ "helm.sh/helm/v4/cmd/helm"
)
