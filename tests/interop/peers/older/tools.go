//go:build tools

// Package peers names the programs this module builds: they do not compile with the libraries of Kubernetes of the module `shared`.
package peers

import (
	_ "github.com/brancz/kube-rbac-proxy/cmd/kube-rbac-proxy"
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
