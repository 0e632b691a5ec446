package main

import (
	"bytes"
	"encoding/json"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	schedulingconversion "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
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
	return objectLines(objects)
}

// bootstrapPolicy are the roles and bindings that a kube-apiserver makes at its start, in its order
// (pkg/registry/rbac/rest/storage_rbac.go).
func bootstrapPolicy() ([]byte, error) {
	var objects []runtime.Object
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		role.TypeMeta.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
		objects = append(objects, &role)
	}
	bindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	for _, binding := range bindings {
		binding.TypeMeta.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"))
		objects = append(objects, &binding)
	}
	roles, roleBindings := bootstrappolicy.NamespaceRoles(), bootstrappolicy.NamespaceRoleBindings()
	for _, namespace := range sortedKeys(roles) {
		for _, role := range roles[namespace] {
			role.TypeMeta.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("Role"))
			objects = append(objects, &role)
		}
	}
	for _, namespace := range sortedKeys(roleBindings) {
		for _, binding := range roleBindings[namespace] {
			binding.TypeMeta.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("RoleBinding"))
			objects = append(objects, &binding)
		}
	}
	return objectLines(objects)
}

// objectLines are objects with their defaults, each a line of JSON.
func objectLines(objects []runtime.Object) ([]byte, error) {
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
