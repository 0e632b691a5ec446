package main

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
)

// The kinds that configure a cluster.
func init() {
	admission := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	autoscaling := schema.GroupVersion{Group: "autoscaling", Version: "v2"}
	certificatesV1 := schema.GroupVersion{Group: "certificates.k8s.io", Version: "v1"}
	flowControl := schema.GroupVersion{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}
	networking := schema.GroupVersion{Group: "networking.k8s.io", Version: "v1"}
	nodeV1 := schema.GroupVersion{Group: "node.k8s.io", Version: "v1"}
	policy := schema.GroupVersion{Group: "policy", Version: "v1"}
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	resource := schema.GroupVersion{Group: "resource.k8s.io", Version: "v1"}
	scheduling := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1"}
	storage := schema.GroupVersion{Group: "storage.k8s.io", Version: "v1"}
	// Nobody asks it, since there is no authorizer.
	resources := resolver.ResourceResolverFunc(func(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
		return kind.GroupVersion().WithResource("unknown"), nil
	})
	// The time of a phase is that of the request.
	persistentvolume.NowFunc = func() metav1.Time { return metav1.Time{} }
	claims := resourceclaim.NewStrategy(nil, allowingAuthorizer{})
	validatingPolicy := validatingadmissionpolicy.NewStrategy(nil, nil)
	validatedKinds = append(validatedKinds, []validatedKind{
		{"certificatesigningrequests", certificatesV1, certificates.Strategy, certificates.StatusStrategy},
		{"clusterrolebindings", rbac, clusterrolebinding.Strategy, nil},
		{"clusterroles", rbac, clusterrole.Strategy, nil},
		{"csidrivers", storage, csidriver.Strategy, nil},
		{"csinodes", storage, csinode.Strategy, nil},
		{"csistoragecapacities", storage, csistoragecapacity.Strategy, nil},
		{"deviceclasses", resource, deviceclass.Strategy, nil},
		{"flowschemas", flowControl, flowschema.Strategy, flowschema.StatusStrategy},
		{"horizontalpodautoscalers", autoscaling, horizontalpodautoscaler.Strategy, horizontalpodautoscaler.StatusStrategy},
		{"ingressclasses", networking, ingressclass.Strategy, nil},
		{"ingresses", networking, ingress.Strategy, ingress.StatusStrategy},
		{"ipaddresses", networking, ipaddress.Strategy, nil},
		{"limitranges", coreV1, limitrange.Strategy, nil},
		{"mutatingadmissionpolicies", admission, mutatingadmissionpolicy.NewStrategy(nil, nil), nil},
		{"mutatingadmissionpolicybindings", admission, mutatingadmissionpolicybinding.NewStrategy(nil, nil, resources), nil},
		{"mutatingwebhookconfigurations", admission, mutatingwebhookconfiguration.Strategy, nil},
		{"networkpolicies", networking, networkpolicy.Strategy, nil},
		{"nodes", coreV1, node.Strategy, node.StatusStrategy},
		{"persistentvolumeclaims", coreV1, persistentvolumeclaim.Strategy, persistentvolumeclaim.StatusStrategy},
		{"persistentvolumes", coreV1, persistentvolume.Strategy, persistentvolume.StatusStrategy},
		{"poddisruptionbudgets", policy, poddisruptionbudget.Strategy, poddisruptionbudget.StatusStrategy},
		{"priorityclasses", scheduling, priorityclass.Strategy, nil},
		{"prioritylevelconfigurations", flowControl, prioritylevelconfiguration.Strategy, prioritylevelconfiguration.StatusStrategy},
		{"resourceclaims", resource, claims, resourceclaim.NewStatusStrategy(claims)},
		{"resourceclaimtemplates", resource, resourceclaimtemplate.NewStrategy(nil), nil},
		{"resourceslices", resource, resourceslice.Strategy, nil},
		{"resourcequotas", coreV1, resourcequota.Strategy, resourcequota.StatusStrategy},
		{"rolebindings", rbac, rolebinding.Strategy, nil},
		{"roles", rbac, role.Strategy, nil},
		{"runtimeclasses", nodeV1, runtimeclass.Strategy, nil},
		{"servicecidrs", networking, servicecidr.Strategy, servicecidr.StatusStrategy},
		{"storageclasses", storage, storageclass.Strategy, nil},
		{"validatingadmissionpolicies", admission, validatingPolicy, validatingadmissionpolicy.NewStatusStrategy(validatingPolicy)},
		{"validatingadmissionpolicybindings", admission, validatingadmissionpolicybinding.NewStrategy(nil, nil, resources), nil},
		{"validatingwebhookconfigurations", admission, validatingwebhookconfiguration.Strategy, nil},
		{"volumeattachments", storage, volumeattachment.Strategy, volumeattachment.StatusStrategy},
		{"volumeattributesclasses", storage, volumeattributesclass.Strategy, nil},
	}...)
}

// allowingAuthorizer allows everything: the status of a claim can be written by who may bind it.
type allowingAuthorizer struct{}

func (allowingAuthorizer) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}
