package main

import (
	"bytes"
	"encoding/json"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	schedulingconversion "k8s.io/kubernetes/pkg/apis/scheduling/v1"

	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
)

// bootstrapObjects are the objects that a kube-apiserver makes at its start, with their defaults, as lines of JSON:
// PriorityClasses (pkg/registry/scheduling/rest) and the configuration of flow control
// (k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap). Services and namespaces depend on flags, and are not among them.
func bootstrapObjects() ([]byte, error) {
	var objects []runtime.Object
	for _, class := range schedulingconversion.SystemPriorityClasses() {
		class.TypeMeta.SetGroupVersionKind(schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"))
		objects = append(objects, class)
	}
	levels := append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...)
	for _, level := range levels {
		level = level.DeepCopy()
		level.TypeMeta.SetGroupVersionKind(flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration"))
		objects = append(objects, level)
	}
	for _, schema := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		schema = schema.DeepCopy()
		schema.TypeMeta.SetGroupVersionKind(flowcontrolv1.SchemeGroupVersion.WithKind("FlowSchema"))
		objects = append(objects, schema)
	}
	var out bytes.Buffer
	for _, object := range objects {
		legacyscheme.Scheme.Default(object)
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return nil, err
		}
		delete(fields, "status")
		if err := writeLine(&out, fields); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
