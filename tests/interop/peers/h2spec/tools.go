//go:build tools

// Package peers names the programs this module builds, so that `go mod tidy` keeps their dependencies.
package peers

import (
	_ "github.com/summerwind/h2spec/cmd/h2spec"
)
