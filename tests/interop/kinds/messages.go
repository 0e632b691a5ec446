package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// message is a line of kinds.json: a Go struct with the fields of its JSON.
type message struct {
	Name   string  `json:"name"`
	Fields []field `json:"fields"`
	// x-kubernetes-map-type; x-kubernetes-group-version-kind is the resource's.
	MapType string `json:"mapType,omitempty"`
}

// field is a field of a message.
type field struct {
	// Name in JSON; absent for a struct whose fields are those of the one around it in JSON, though not in protobuf.
	Name string `json:"n,omitempty"`
	// Number in protobuf; absent where it is not in protobuf.
	Number int `json:"p,omitempty"`
	// Go's type: "*" is a pointer, "[]" a list, "{}" a map from strings, "()" a message around a list, then a scalar, a
	// type with a form of its own, or the name of a message.
	Type string `json:"t"`
	// Go's name of the scalar in it, as it is in errors; absent where the type says it.
	GoType string `json:"g,omitempty"`
	// "e" for omitempty, "z" for omitzero.
	Omit          string          `json:"o,omitempty"`
	Required      bool            `json:"r,omitempty"`
	ListType      string          `json:"l,omitempty"`
	ListKeys      []string        `json:"k,omitempty"`
	PatchStrategy string          `json:"s,omitempty"`
	PatchKey      string          `json:"m,omitempty"`
	MapType       string          `json:"a,omitempty"`
	Default       json.RawMessage `json:"d,omitempty"`
}

// Types with a form of their own in JSON or protobuf.
var special = map[string]string{
	"io.k8s.apimachinery.pkg.apis.meta.v1.Time":                                             "Time",
	"io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime":                                        "MicroTime",
	"io.k8s.apimachinery.pkg.apis.meta.v1.Duration":                                         "Duration",
	"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1":                                         "FieldsV1",
	"io.k8s.apimachinery.pkg.api.resource.Quantity":                                         "Quantity",
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString":                                       "IntOrString",
	"io.k8s.apimachinery.pkg.runtime.RawExtension":                                          "RawExtension",
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON":                         "RawJSON",
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray":       "SchemaOrArray",
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool":        "SchemaOrBool",
	"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray": "SchemaOrStringArray",
}

var schemes = []*runtime.Scheme{legacyscheme.Scheme, apiextensionsscheme.Scheme, aggregatorscheme.Scheme}

type messageReader struct {
	definitions map[string]common.OpenAPIDefinition
	found       map[string]*message
	err         error
}

func newMessageReader() *messageReader {
	reader := &messageReader{definitions: map[string]common.OpenAPIDefinition{}, found: map[string]*message{}}
	reference := func(path string) spec.Ref { return spec.MustCreateRef("#/definitions/" + path) }
	for _, get := range []common.GetOpenAPIDefinitions{
		openapi.GetOpenAPIDefinitions, apiextensionsopenapi.GetOpenAPIDefinitions, aggregatoropenapi.GetOpenAPIDefinitions,
	} {
		for name, definition := range get(reference) {
			reader.definitions[name] = definition
		}
	}
	return reader
}

// ofKind reads the message of a kind, and those it uses, and returns its name.
func (r *messageReader) ofKind(kind schema.GroupVersionKind) (string, error) {
	for _, scheme := range schemes {
		if object, err := scheme.New(kind); err == nil {
			return r.of(object)
		}
	}
	if kind.GroupVersion() == metav1.SchemeGroupVersion {
		scheme := runtime.NewScheme()
		metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
		if object, err := scheme.New(kind); err == nil {
			return r.of(object)
		}
		for _, object := range []any{&metav1.Status{}} {
			if reflect.TypeOf(object).Elem().Name() == kind.Kind {
				return r.of(object)
			}
		}
	}
	return "", fmt.Errorf("no Go type for %v", kind)
}

func (r *messageReader) of(value any) (string, error) {
	t := reflect.TypeOf(value)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := r.typeName(t)
	return name, r.err
}

func (r *messageReader) messages() ([]*message, error) {
	var all []*message
	for _, message := range r.found {
		all = append(all, message)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, r.err
}

func (r *messageReader) fail(format string, arguments ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, arguments...)
	}
}

func modelName(t reflect.Type) string {
	if named, ok := reflect.New(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return ""
}

// typeName is the type of a field, as the file has it.
func (r *messageReader) typeName(t reflect.Type) string {
	if name, ok := special[modelName(t)]; ok && t.Kind() == reflect.Struct {
		return name
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + r.typeName(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if _, ok := reflect.New(t).Interface().(interface{ MarshalToSizedBuffer([]byte) (int, error) }); ok {
			return "()" + r.typeName(t.Elem())
		}
		return "[]" + r.typeName(t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			r.fail("map from %v", t.Key())
		}
		return "{}" + r.typeName(t.Elem())
	case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64, reflect.Uint32, reflect.Uint64:
		return t.Kind().String()
	case reflect.Struct:
		return r.readMessage(t)
	}
	r.fail("no form for %v", t)
	return ""
}

func (r *messageReader) readMessage(t reflect.Type) string {
	name := modelName(t)
	if name == "" {
		r.fail("%v has no OpenAPI name", t)
		return ""
	}
	if r.found[name] != nil {
		return name
	}
	read := &message{Name: name, Fields: []field{}}
	r.found[name] = read
	definition := r.definitions[name].Schema
	read.MapType, _ = definition.Extensions.GetString("x-kubernetes-map-type")
	read.Fields = append(read.Fields, r.readFields(t, definition)...)
	sort.SliceStable(read.Fields, func(i, j int) bool { return read.Fields[i].Number < read.Fields[j].Number })
	return name
}

func (r *messageReader) readFields(t reflect.Type, definition spec.Schema) []field {
	var fields []field
	for i := range t.NumField() {
		member := t.Field(i)
		name, options, _ := strings.Cut(member.Tag.Get("json"), ",")
		number, err := protobufNumber(member.Tag.Get("protobuf"))
		if err != nil {
			r.fail("%v.%s: %v", t, member.Name, err)
		}
		if name == "-" || !member.IsExported() {
			continue
		}
		if name == "" {
			inline := member.Type
			if member.Anonymous && inline.Kind() == reflect.Struct && number == 0 {
				// TypeMeta: in protobuf, the envelope has it.
				for _, above := range r.readFields(inline, definition) {
					above.Number = 0
					fields = append(fields, above)
				}
				continue
			}
			if !member.Anonymous {
				r.fail("%v.%s has no name in JSON", t, member.Name)
			}
			fields = append(fields, field{Number: number, Type: r.typeName(inline)})
			continue
		}
		read := field{
			Name: name, Number: number, Type: r.typeName(member.Type), GoType: goType(member.Type),
			PatchStrategy: member.Tag.Get("patchStrategy"), PatchKey: member.Tag.Get("patchMergeKey"),
		}
		for _, option := range strings.Split(options, ",") {
			switch option {
			case "omitempty":
				read.Omit = "e" + read.Omit
			case "omitzero":
				read.Omit += "z"
			case "", "inline":
			default:
				r.fail("%v.%s: option %q", t, member.Name, option)
			}
		}
		r.readSchema(&read, definition)
		fields = append(fields, read)
	}
	return fields
}

// readSchema takes from OpenAPI what the tags do not say.
func (r *messageReader) readSchema(read *field, definition spec.Schema) {
	for _, required := range definition.Required {
		read.Required = read.Required || required == read.Name
	}
	property, ok := definition.Properties[read.Name]
	if !ok {
		return
	}
	read.ListType, _ = property.Extensions.GetString("x-kubernetes-list-type")
	read.MapType, _ = property.Extensions.GetString("x-kubernetes-map-type")
	read.ListKeys, _ = property.Extensions.GetStringSlice("x-kubernetes-list-map-keys")
	if property.Default == nil {
		return
	}
	text, err := json.Marshal(property.Default)
	if err != nil {
		r.fail("default of %s: %v", read.Name, err)
	}
	// A value that Go has anyway is no default.
	for _, zero := range []string{`""`, "0", "false", "{}", "null"} {
		if bytes.Equal(text, []byte(zero)) {
			return
		}
	}
	read.Default = text
}

// goType is the name of a scalar that is not one of Go's own.
func goType(t reflect.Type) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		t = t.Elem()
	}
	if t.Kind() == reflect.Struct || t.PkgPath() == "" {
		return ""
	}
	return t.String()
}

func protobufNumber(tag string) (int, error) {
	if tag == "" || tag == "-" {
		return 0, nil
	}
	parts := strings.Split(tag, ",")
	if len(parts) < 2 {
		return 0, fmt.Errorf("protobuf tag %q", tag)
	}
	return strconv.Atoi(parts[1])
}
