package main

import (
	"bytes"
	"fmt"
	"reflect"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	devices "k8s.io/kubernetes/pkg/apis/resource"
)

// internalStructsFile holds the structs of Go's internal types, as errors show them.
const internalStructsFile = "src/kinds/internal_structs.json"

// internalStructReader reads internal types beside the versioned types with the same content.
type internalStructReader struct {
	// Fields by the name of the struct. A field is its name in Go, its name in JSON, and its type.
	found map[string][][3]string
}

// internalStructs are the structs that Pods and workloads have, one a line.
func internalStructs() []byte {
	reader := &internalStructReader{found: map[string][][3]string{}}
	for _, pair := range [][2]any{
		{core.Pod{}, corev1.Pod{}},
		{core.PodTemplate{}, corev1.PodTemplate{}},
		{core.ReplicationController{}, corev1.ReplicationController{}},
		{apps.Deployment{}, appsv1.Deployment{}},
		{apps.StatefulSet{}, appsv1.StatefulSet{}},
		{apps.DaemonSet{}, appsv1.DaemonSet{}},
		{batch.Job{}, batchv1.Job{}},
		{batch.CronJob{}, batchv1.CronJob{}},
		{core.PersistentVolume{}, corev1.PersistentVolume{}},
		{devices.ResourceClaim{}, resourcev1.ResourceClaim{}},
		{devices.ResourceClaimTemplate{}, resourcev1.ResourceClaimTemplate{}},
		{devices.ResourceSlice{}, resourcev1.ResourceSlice{}},
		{flowcontrol.FlowSchema{}, flowcontrolv1.FlowSchema{}},
		{flowcontrol.PriorityLevelConfiguration{}, flowcontrolv1.PriorityLevelConfiguration{}},
	} {
		reader.typeCode(reflect.TypeOf(pair[0]), reflect.TypeOf(pair[1]))
	}
	names := make([]string, 0, len(reader.found))
	for name := range reader.found {
		names = append(names, name)
	}
	sort.Strings(names)
	var out bytes.Buffer
	for _, name := range names {
		must(writeLine(&out, map[string]any{"name": name, "fields": reader.found[name]}))
	}
	return out.Bytes()
}

// typeCode is "*", "[]" and "{}" for pointers, lists and maps, then the name of a struct, or "s", "b" and "i" for texts,
// booleans and numbers, or "j" for what errors show as in JSON.
func (r *internalStructReader) typeCode(internal, versioned reflect.Type) string {
	if internal.Kind() == reflect.Struct && strings.HasPrefix(internal.PkgPath(), "k8s.io/apimachinery/") {
		return "j"
	}
	if internal == versioned {
		switch internal.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			return map[reflect.Kind]string{reflect.Pointer: "*", reflect.Slice: "[]", reflect.Map: "{}"}[internal.Kind()] + r.typeCode(internal.Elem(), internal.Elem())
		case reflect.Struct:
			return "j"
		}
	}
	switch internal.Kind() {
	case reflect.String:
		return "s"
	case reflect.Bool:
		return "b"
	case reflect.Int32, reflect.Int64:
		return "i"
	case reflect.Pointer:
		if versioned.Kind() != reflect.Pointer {
			return "*" + r.typeCode(internal.Elem(), versioned)
		}
		return "*" + r.typeCode(internal.Elem(), versioned.Elem())
	case reflect.Slice:
		return "[]" + r.typeCode(internal.Elem(), versioned.Elem())
	case reflect.Map:
		return "{}" + r.typeCode(internal.Elem(), versioned.Elem())
	case reflect.Struct:
		if versioned.Kind() == reflect.Pointer {
			versioned = versioned.Elem()
		}
		return r.structName(internal, versioned)
	default:
		return "j"
	}
}

// Fields of a PodSpec that are internally in its security context.
var inSecurityContext = map[string]bool{"HostNetwork": true, "HostPID": true, "HostIPC": true, "ShareProcessNamespace": true, "HostUsers": true}

func (r *internalStructReader) structName(internal, versioned reflect.Type) string {
	name := internal.String()
	if _, found := r.found[name]; found {
		return name
	}
	r.found[name] = nil
	var fields [][3]string
	for i := range internal.NumField() {
		field := internal.Field(i)
		if field.Name == "TypeMeta" || field.Name == "ListMeta" {
			continue
		}
		if internal.Name() == "PodSecurityContext" && inSecurityContext[field.Name] {
			other, _ := reflect.TypeOf(corev1.PodSpec{}).FieldByName(field.Name)
			fields = append(fields, [3]string{field.Name, "^" + jsonName(other), r.typeCode(field.Type, other.Type)})
			continue
		}
		other, found := versioned.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, field.Name) })
		if !found {
			fmt.Printf("%s.%s is not in %v\n", name, field.Name, versioned)
			continue
		}
		goName, inJSON := field.Name, jsonName(other)
		if tag := jsonName(field); tag != "" {
			goName = tag
		}
		if field.Anonymous && jsonName(field) == "" {
			goName = ""
			if field.Name == "ObjectMeta" {
				inJSON = "metadata"
			}
		}
		fields = append(fields, [3]string{goName, inJSON, r.typeCode(field.Type, other.Type)})
	}
	r.found[name] = fields
	return name
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}
