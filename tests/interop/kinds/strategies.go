package main

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
)

var (
	coreV1  = schema.GroupVersion{Version: "v1"}
	appsV1  = schema.GroupVersion{Group: "apps", Version: "v1"}
	batchV1 = schema.GroupVersion{Group: "batch", Version: "v1"}
)

// validatedKinds are the kinds with a file in `objects` and one in `validationFolder`.
var validatedKinds = []validatedKind{
	{"controllerrevisions", appsV1, controllerrevision.Strategy, nil},
	{"cronjobs", batchV1, cronjob.Strategy, cronjob.StatusStrategy},
	{"daemonsets", appsV1, daemonset.Strategy, daemonset.StatusStrategy},
	{"deployments", appsV1, deployment.Strategy, deployment.StatusStrategy},
	{"jobs", batchV1, job.Strategy, job.StatusStrategy},
	{"pods", coreV1, pod.Strategy, pod.StatusStrategy},
	{"podtemplates", coreV1, podtemplate.Strategy, nil},
	{"replicasets", appsV1, replicaset.Strategy, replicaset.StatusStrategy},
	{"replicationcontrollers", coreV1, replicationcontroller.Strategy, replicationcontroller.StatusStrategy},
	{"statefulsets", appsV1, statefulset.Strategy, statefulset.StatusStrategy},
}

// Containers may be privileged, as in clusters: they set --allow-privileged.
func init() { capabilities.Setup(true, 0) }
