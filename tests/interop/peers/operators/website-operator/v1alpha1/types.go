// Package v1alpha1 is the first version of Website: host and port are one string.
package v1alpha1

import (
	"fmt"
	"net"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	v1 "narthex/interop/operators/website-operator/v1"
)

// GroupVersion of the types of this package.
var GroupVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1alpha1"}

// WebsiteSpec is where the website is served, as HOST:PORT.
type WebsiteSpec struct {
	Address string `json:"address"`
}

// Website is served at an address.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              WebsiteSpec      `json:"spec"`
	Status            v1.WebsiteStatus `json:"status,omitempty"`
}

// WebsiteList is a list of Website.
type WebsiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Website `json:"items"`
}

// ConvertTo converts to the hub version.
func (w *Website) ConvertTo(hub conversion.Hub) error {
	host, text, err := net.SplitHostPort(w.Spec.Address)
	if err != nil {
		return fmt.Errorf("spec.address: %w", err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return fmt.Errorf("spec.address: %w", err)
	}
	to := hub.(*v1.Website)
	to.ObjectMeta, to.Status = w.ObjectMeta, w.Status
	to.Spec = v1.WebsiteSpec{Host: host, Port: int32(port)}
	return nil
}

// ConvertFrom converts from the hub version.
func (w *Website) ConvertFrom(hub conversion.Hub) error {
	from := hub.(*v1.Website)
	w.ObjectMeta, w.Status = from.ObjectMeta, from.Status
	w.Spec.Address = net.JoinHostPort(from.Spec.Host, strconv.Itoa(int(from.Spec.Port)))
	return nil
}

// DeepCopyObject implements runtime.Object.
func (w *Website) DeepCopyObject() runtime.Object {
	copied := *w
	w.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	copied.Status.Conditions = append([]metav1.Condition(nil), w.Status.Conditions...)
	return &copied
}

// DeepCopyObject implements runtime.Object.
func (l *WebsiteList) DeepCopyObject() runtime.Object {
	copied := *l
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	copied.Items = make([]Website, len(l.Items))
	for i := range l.Items {
		copied.Items[i] = *l.Items[i].DeepCopyObject().(*Website)
	}
	return &copied
}

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Website{}, &WebsiteList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
