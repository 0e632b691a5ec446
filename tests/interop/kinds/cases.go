package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// userKinds are the kinds whose objects Narthex stores.
var userKinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Namespace"},
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "Secret"},
	{Version: "v1", Kind: "ServiceAccount"},
	{Version: "v1", Kind: "Event"},
	{Group: "events.k8s.io", Version: "v1", Kind: "Event"},
	{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "Endpoints"},
	{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
	{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"},
}

// otherKinds have forms that the kinds above do not have: quantities, inlined structs, schemas, numbers.
var otherKinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "LimitRange"},
	{Version: "v1", Kind: "PersistentVolume"},
	{Version: "v1", Kind: "ConfigMapList"},
	{Group: "apps", Version: "v1", Kind: "ControllerRevision"},
	{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenReview"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
	{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
}

func newObject(kind schema.GroupVersionKind) (runtime.Object, *runtime.Scheme, error) {
	for _, scheme := range schemes {
		if object, err := scheme.New(kind); err == nil {
			object.GetObjectKind().SetGroupVersionKind(kind)
			return object, scheme, nil
		}
	}
	return nil, nil, fmt.Errorf("no Go type for %v", kind)
}

// objectCases are objects in JSON and in protobuf: one a kind without any field, one with every field, some between.
func objectCases() ([]byte, error) {
	random := rand.New(rand.NewPCG(1, 36))
	var out bytes.Buffer
	write := func(kind schema.GroupVersionKind, share float64) error {
		object, scheme, err := newObject(kind)
		if err != nil {
			return err
		}
		filler := &filler{random: random, share: share}
		filler.fill(reflect.ValueOf(object).Elem(), 0)
		object.GetObjectKind().SetGroupVersionKind(kind)
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		var binary bytes.Buffer
		if err := protobuf.NewSerializer(scheme, scheme).Encode(object, &binary); err != nil {
			return err
		}
		return writeLine(&out, struct {
			Object   json.RawMessage `json:"object"`
			Protobuf []byte          `json:"protobuf"`
		}{text, binary.Bytes()})
	}
	for _, kind := range userKinds {
		for _, share := range []float64{0, 1, 0.5, 0.5} {
			if err := write(kind, share); err != nil {
				return nil, err
			}
		}
	}
	for _, kind := range otherKinds {
		for _, share := range []float64{0, 0.6} {
			if err := write(kind, share); err != nil {
				return nil, err
			}
		}
	}
	return out.Bytes(), nil
}

// filler fills objects with what survives a way through JSON and protobuf: no empty lists, times of full seconds.
type filler struct {
	random *rand.Rand
	// Share of optional values that are set.
	share float64
}

var words = []string{"a", "web", "kube-system", "grün", "<b>&\"\\\n", "\u2028", "10.0.0.1", "日本"}

func (f *filler) word() string { return words[f.random.IntN(len(words))] }

func (f *filler) set() bool { return f.random.Float64() < f.share }

func (f *filler) seconds() int64 { return f.random.Int64N(4e9) - 5e8 }

func (f *filler) fill(v reflect.Value, depth int) {
	switch value := v.Addr().Interface().(type) {
	case *metav1.TypeMeta:
		return
	case *metav1.Time:
		if f.set() {
			value.Time = time.Unix(f.seconds(), 0).UTC()
		}
		return
	case *metav1.MicroTime:
		if f.set() {
			value.Time = time.Unix(f.seconds(), f.random.Int64N(1e6)*1000).UTC()
		}
		return
	case *intstr.IntOrString:
		if f.set() {
			*value = intstr.FromString("http")
		} else {
			*value = intstr.FromInt32(f.random.Int32N(70000))
		}
		return
	case *runtime.RawExtension:
		value.Raw = []byte(`{"a":[1,2.5,"x"]}`)
		return
	case *metav1.FieldsV1:
		value.SetRawString(`{"f:metadata":{"f:name":{}}}`)
		return
	}
	switch modelName(v.Type()) {
	case "io.k8s.apimachinery.pkg.api.resource.Quantity":
		must(json.Unmarshal([]byte([]string{`"1500m"`, `"2Gi"`, `"0"`}[f.random.IntN(3)]), v.Addr().Interface()))
		return
	case "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON":
		must(json.Unmarshal([]byte(`{"a":null,"b":[true]}`), v.Addr().Interface()))
		return
	case "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
		"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
		"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray":
		must(json.Unmarshal([]byte(`{"type":"string","maxLength":3}`), v.Addr().Interface()))
		return
	}
	f.fillKind(v, depth)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (f *filler) fillKind(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Tag.Get("json") != "-" {
				f.fill(v.Field(i), depth+1)
			}
		}
	case reflect.Pointer:
		if f.set() && depth < 8 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem(), depth+1)
			if time, ok := v.Interface().(interface{ IsZero() bool }); ok && time.IsZero() {
				v.SetZero()
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if f.set() {
				v.SetBytes([]byte(f.word()))
			}
			return
		}
		if f.set() && depth < 8 {
			v.Set(reflect.MakeSlice(v.Type(), 1+f.random.IntN(2), 2))
			for i := range v.Len() {
				f.fill(v.Index(i), depth+1)
			}
		}
	case reflect.Map:
		if f.set() && depth < 8 {
			v.Set(reflect.MakeMap(v.Type()))
			for range 2 {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				key.SetString(f.word())
				f.fill(value, depth+1)
				if value.Kind() == reflect.Slice && value.IsNil() {
					value.Set(reflect.MakeSlice(value.Type(), 0, 0))
				}
				v.SetMapIndex(key, value)
			}
		}
	case reflect.String:
		if f.set() {
			v.SetString(f.word())
		}
	case reflect.Bool:
		v.SetBool(f.set())
	case reflect.Int32:
		if f.set() {
			v.SetInt(int64(int32(f.random.Uint32() >> f.random.IntN(32))))
		}
	case reflect.Int64:
		if f.set() {
			v.SetInt(int64(f.random.Uint64() >> f.random.IntN(64)))
		}
	case reflect.Float64:
		if f.set() {
			v.SetFloat(float64(f.random.IntN(100)) / 8)
		}
	default:
		panic(v.Type())
	}
}

func decode(text string, strict bool) (runtime.Object, *runtime.Scheme, error) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		return nil, nil, err
	}
	_, scheme, err := newObject(meta.GroupVersionKind())
	if err != nil {
		return nil, nil, err
	}
	serializer := serializerjson.NewSerializerWithOptions(serializerjson.DefaultMetaFactory, scheme, scheme, serializerjson.SerializerOptions{Strict: strict})
	object, _, err := serializer.Decode([]byte(text), nil, nil)
	return object, scheme, err
}

// defaultCases are objects as a client sends them, and as the defaulting functions leave them.
func defaultCases() ([]byte, error) {
	var out bytes.Buffer
	for _, text := range []string{
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"generateName":"a-"}}`,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a","labels":{"kubernetes.io/metadata.name":"b","c":"d"}}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"stringData":{"b":"c"}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"type":"kubernetes.io/tls","data":{"b":"Yw=="}}`,
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Event","metadata":{"name":"a"},"involvedObject":{}}`,
		`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"a"}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":80},{"port":81,"targetPort":"","protocol":"UDP"},{"port":82,"targetPort":"http"},{"port":83,"targetPort":9}]}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"type":"ExternalName","externalName":"b"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"type":"NodePort","sessionAffinity":"ClientIP"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":3}}}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"sessionAffinity":"None","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":3}}}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"},{"hostname":"h"},{"ip":"1.2.3.5","ipMode":"Proxy"}]}}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"externalIPs":["1.2.3.4"],"internalTrafficPolicy":"Local"}}`,
		`{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"a"},"subsets":[{"addresses":[{"ip":"1.2.3.4"}],"ports":[{"port":80},{"port":81,"protocol":"UDP"}]}]}`,
		`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"a"},"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"]}],"ports":[{"port":80},{"name":"b","protocol":"UDP"}]}`,
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.a"},"spec":{"group":"a","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"service":{"name":"b","namespace":"c"}}}`,
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.a"},"spec":{"groupPriorityMinimum":1,"versionPriority":1}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"hostNetwork":true,"restartPolicy":"Never","containers":[{"name":"c","image":"r:5000/i:latest","ports":[{"containerPort":80},{"containerPort":81,"hostPort":8081}],"resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}},"livenessProbe":{"httpGet":{"port":80}},"readinessProbe":{"grpc":{"port":1},"periodSeconds":3},"env":[{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],"initContainers":[{"name":"d","image":"r:5000/i","resources":{"limits":{"cpu":"1"}}},{"name":"e","image":"i:1"},{"name":"f","image":"i@sha256:0123456789012345678901234567890123456789012345678901234567890123"}]}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[],"ephemeralContainers":[{"name":"c","image":"i:2"}],"volumes":[{"name":"a"},{"name":"b","secret":{}},{"name":"c","configMap":{"name":"m"}},{"name":"d","hostPath":{"path":"/"}},{"name":"e","downwardAPI":{"items":[{"path":"p","fieldRef":{"fieldPath":"metadata.name"}}]}},{"name":"f","projected":{"sources":[{"serviceAccountToken":{"path":"p"}}]}},{"name":"g","image":{"reference":"i"}},{"name":"h","ephemeral":{"volumeClaimTemplate":{"spec":{}}}},{"name":"i","iscsi":{"targetPortal":"t","iqn":"i","lun":0}}]}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"replicas":0,"strategy":{"type":"Recreate"},"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"strategy":{"rollingUpdate":{"maxSurge":1}}}}`,
		`{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"a"},"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"a"},"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}},"volumeClaimTemplates":[{"metadata":{"name":"v"}}]}}`,
		`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"a"},"spec":{"updateStrategy":{"type":"RollingUpdate"},"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"a"},"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a"},"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","labels":{"own":"z"}},"spec":{"completions":3,"backoffLimitPerIndex":1,"podFailurePolicy":{"rules":[{"action":"Ignore","onPodConditions":[{"type":"T"}]}]},"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		`{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"a"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}}}`,
	} {
		object, scheme, err := decode(text, false)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		scheme.Default(object)
		if err := writeLine(&out, struct {
			Sent      json.RawMessage `json:"sent"`
			Defaulted runtime.Object  `json:"defaulted"`
		}{json.RawMessage(text), object}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// strictCases are objects with mistakes, what strict decoding says of them, and what is left of them.
func strictCases() ([]byte, error) {
	var out bytes.Buffer
	for _, text := range []string{
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"b":"c"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","dat":{"b":"c"},"metadata":{"labes":{},"name":"a"},"spec":{"foo":1}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","ownerReferences":[{"kind":"A"},{"kidn":"B","name":"b"}]}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","Metadata":{"name":"a"},"metadata":{"Name":"a"}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80,"potr":1},{"port":81,"potr":1}],"selector":{"x":"y"},"foo":null},"status":{"loadBalancer":{"x":1}}}`,
		`{"apiVersion":"v1","kind":"ConfigMapList","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","x":1}}]}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{"versions":[{"name":"v1","schema":{"openAPIV3Schema":{"properties":{"a":{"tpye":"string"},"b":{"items":{"tpye":"string"}}}}}}]}}`,
		`{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"a","volumeMounts":[{"nmae":"b"}]}],"volumes":[{"name":"a","secret":{"secretName":"b","x":1},"y":2}]}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","data":null,"metadata":null,"immutable":null}`,
		`{"apiVersion":"v1","kind":"ConfigMap","data":{"b":null},"binaryData":{"c":null,"d":""}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","data":{"b":1}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","data":["b"]}`,
		`{"apiVersion":"v1","kind":"ConfigMap","data":"b"}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":7}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"a":true}}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":[]}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":"x"}`,
		`{"apiVersion":"v1","kind":"ConfigMap","immutable":"true"}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"creationTimestamp":"yesterday"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"creationTimestamp":7}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"creationTimestamp":"2026-01-02T03:04:05.5+01:00"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","binaryData":{"c":"%%"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","binaryData":{"c":7}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"ownerReferences":[{"uid":1}]}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":"80"}]}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80.5}]}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":8000000000}]}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80,"targetPort":true}]}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":{"port":80}}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"ports":[null]}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"type":{"a":1}}}`,
		`{"apiVersion":"v1","kind":"Service","spec":{"clusterIP":8,"type":7}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"renewTime":"2026-01-02T03:04:05.123456Z","leaseDurationSeconds":15}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"renewTime":"2026-01-02T03:04:05Z"}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"renewTime":"2026-01-02T03:04:05.123Z"}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"renewTime":7}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":7}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":"","leaseTransitions":0}}`,
		`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","endpoints":[{"addresses":[],"conditions":{"ready":false}}],"ports":[],"addressType":""}`,
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","spec":{"caBundle":"","groupPriorityMinimum":0}}`,
	} {
		one := struct {
			Sent  json.RawMessage `json:"sent"`
			Error string          `json:"error,omitempty"`
			Left  runtime.Object  `json:"left,omitempty"`
		}{Sent: json.RawMessage(text)}
		object, _, err := decode(text, true)
		if err != nil {
			one.Error = err.Error()
		}
		if runtime.IsStrictDecodingError(err) || err == nil {
			one.Left = object
		}
		if err := writeLine(&out, one); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
