//go:build tools

// Package peers names the programs this module builds. They share a module so that what they have in common is built once.
package peers

import (
	_ "github.com/prometheus/prometheus/cmd/promtool"
	_ "helm.sh/helm/v4/cmd/helm"
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
