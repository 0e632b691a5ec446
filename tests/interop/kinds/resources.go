package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/kubeapiserver"
)

// server is a kube-apiserver.
type server struct {
	client *http.Client
	host   string
}

// call sends a request and decodes the answer.
func (s *server) call(ctx context.Context, method, path, accept string, body []byte, into any) (http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return response.Header, json.Unmarshal(text, into)
}

// resource is a line of kinds.json.
type resource struct {
	Group      string   `json:"group"`
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	Kind       string   `json:"kind"`
	ListKind   string   `json:"listKind,omitempty"`
	ShortNames []string `json:"shortNames,omitempty"`
	Categories []string `json:"categories,omitempty"`
	Namespaced bool     `json:"namespaced"`
	// Group and version of the stored form; absent where nothing is stored.
	Storage *groupVersion `json:"storage,omitempty"`
	// Path of the keys in etcd below the prefix.
	StoragePath string            `json:"storagePath,omitempty"`
	Versions    []resourceVersion `json:"versions"`
	Columns     []column          `json:"columns,omitempty"`
}

type groupVersion struct {
	Group   string `json:"group"`
	Version string `json:"version"`
}

type resourceVersion struct {
	Version      string        `json:"version"`
	Message      string        `json:"message"`
	ListMessage  string        `json:"listMessage,omitempty"`
	Verbs        []string      `json:"verbs"`
	Hash         string        `json:"storageVersionHash,omitempty"`
	Subresources []subresource `json:"subresources,omitempty"`
}

type subresource struct {
	Name    string   `json:"name"`
	Group   string   `json:"group,omitempty"`
	Version string   `json:"version,omitempty"`
	Kind    string   `json:"kind"`
	Message string   `json:"message,omitempty"`
	Verbs   []string `json:"verbs"`
}

type column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"`
}

// kinds is the file of kinds: a line a resource, a line a message.
func kinds(ctx context.Context, server *server) ([]byte, error) {
	reader := newMessageReader()
	resources, err := readResources(ctx, server, reader)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{
		"CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions", "Status",
	} {
		if _, err := reader.ofKind(metav1.SchemeGroupVersion.WithKind(kind)); err != nil {
			return nil, err
		}
	}
	for _, value := range []any{
		metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadataList{}, metav1.WatchEvent{},
	} {
		if _, err := reader.of(value); err != nil {
			return nil, err
		}
	}
	messages, err := reader.messages()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("{\"resources\":[\n")
	if err := writeLines(&out, resources); err != nil {
		return nil, err
	}
	out.WriteString("],\"messages\":[\n")
	if err := writeLines(&out, messages); err != nil {
		return nil, err
	}
	out.WriteString("]}\n")
	return out.Bytes(), nil
}

func writeLines[T any](out *bytes.Buffer, lines []T) error {
	for i, line := range lines {
		if err := writeLine(out, line); err != nil {
			return err
		}
		if i+1 < len(lines) {
			out.Truncate(out.Len() - 1)
			out.WriteString(",\n")
		}
	}
	return nil
}

func readResources(ctx context.Context, server *server, reader *messageReader) ([]resource, error) {
	var groups metav1.APIGroupList
	if _, err := server.call(ctx, "GET", "/apis", "application/json", nil, &groups); err != nil {
		return nil, err
	}
	all := append([]metav1.APIGroup{{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "v1", Version: "v1"}}}}, groups.Groups...)
	found := map[schema.GroupResource]*resource{}
	for _, group := range all {
		if !isBuiltin(group.Name) {
			continue
		}
		for _, version := range group.Versions {
			if err := readVersion(ctx, server, reader, schema.GroupVersion{Group: group.Name, Version: version.Version}, found); err != nil {
				return nil, err
			}
		}
	}
	var resources []resource
	for _, one := range found {
		if one.ListKind != "" {
			if err := readColumns(ctx, server, one); err != nil {
				return nil, err
			}
		}
		resources = append(resources, *one)
	}
	sort.Slice(resources, func(i, j int) bool {
		a, b := resources[i], resources[j]
		return a.Group < b.Group || a.Group == b.Group && a.Plural < b.Plural
	})
	return resources, nil
}

// isBuiltin says whether a group is Kubernetes' own, not one of a CustomResourceDefinition or an extension server.
func isBuiltin(group string) bool {
	for _, scheme := range schemes {
		if scheme.IsGroupRegistered(group) {
			return true
		}
	}
	return false
}

func path(group, version string) string {
	if group == "" {
		return "/api/" + version
	}
	return "/apis/" + group + "/" + version
}

func readVersion(ctx context.Context, server *server, reader *messageReader, version schema.GroupVersion, found map[schema.GroupResource]*resource) error {
	var list metav1.APIResourceList
	if _, err := server.call(ctx, "GET", path(version.Group, version.Version), "application/json", nil, &list); err != nil {
		return err
	}
	sort.Slice(list.APIResources, func(i, j int) bool { return list.APIResources[i].Name < list.APIResources[j].Name })
	for _, named := range list.APIResources {
		if strings.Contains(named.Name, "/") {
			continue
		}
		message, err := reader.ofKind(version.WithKind(named.Kind))
		if err != nil {
			return err
		}
		one := found[version.WithResource(named.Name).GroupResource()]
		if one == nil {
			one = &resource{
				Group: version.Group, Plural: named.Name, Singular: named.SingularName, Kind: named.Kind,
				ShortNames: named.ShortNames, Categories: named.Categories, Namespaced: named.Namespaced,
			}
			found[version.WithResource(named.Name).GroupResource()] = one
		}
		served := resourceVersion{Version: version.Version, Message: message, Verbs: named.Verbs, Hash: named.StorageVersionHash}
		if hasVerb(named.Verbs, "list") {
			one.ListKind = named.Kind + "List"
			if served.ListMessage, err = reader.ofKind(version.WithKind(one.ListKind)); err != nil {
				return err
			}
		}
		if named.StorageVersionHash != "" {
			if one.Storage, err = storage(named.StorageVersionHash, version.Group, named.Kind); err != nil {
				return err
			}
			one.StoragePath = storagePath(version.Group, named.Name)
		}
		for _, other := range list.APIResources {
			name, ok := strings.CutPrefix(other.Name, named.Name+"/")
			if !ok {
				continue
			}
			sub := subresource{Name: name, Group: other.Group, Version: other.Version, Kind: other.Kind, Verbs: other.Verbs}
			of := version.WithKind(other.Kind)
			if other.Version != "" {
				of = schema.GroupVersionKind{Group: other.Group, Version: other.Version, Kind: other.Kind}
			}
			if sub.Message, err = reader.ofKind(of); err != nil {
				return err
			}
			served.Subresources = append(served.Subresources, sub)
		}
		one.Versions = append(one.Versions, served)
	}
	return nil
}

func hasVerb(verbs []string, verb string) bool {
	for _, has := range verbs {
		if has == verb {
			return true
		}
	}
	return false
}

// storage finds the version that a hash of discovery names (StorageVersionHash of k8s.io/apiserver/pkg/endpoints/discovery).
func storage(hash, group, kind string) (*groupVersion, error) {
	for _, candidate := range []string{group, ""} {
		for _, version := range []string{"v1", "v2", "v1beta1", "v1beta2", "v1beta3", "v1alpha1", "v1alpha2", "v1alpha3"} {
			text := candidate + "/" + version + "/" + kind
			if candidate == "" {
				text = "/" + version + "/" + kind
			}
			sum := sha256.Sum256([]byte(text))
			if base64.StdEncoding.EncodeToString(sum[:8]) == hash {
				return &groupVersion{Group: candidate, Version: version}, nil
			}
		}
	}
	return nil, fmt.Errorf("the storage version of %s in group %q is none that is known: %s", kind, group, hash)
}

// storagePath is where a kube-apiserver keeps the objects in etcd.
func storagePath(group, plural string) string {
	if path, ok := kubeapiserver.SpecialDefaultResourcePrefixes[schema.GroupResource{Group: group, Resource: plural}]; ok {
		return path
	}
	// The servers of these two groups keep them apart from those of kube-apiserver's scheme.
	if group == "apiextensions.k8s.io" || group == "apiregistration.k8s.io" {
		return group + "/" + plural
	}
	return plural
}

func readColumns(ctx context.Context, server *server, one *resource) error {
	var table metav1.Table
	list := path(one.Group, one.Versions[0].Version) + "/" + one.Plural + "?limit=1"
	if _, err := server.call(ctx, "GET", list, "application/json;as=Table;v=v1;g=meta.k8s.io", nil, &table); err != nil {
		return err
	}
	for _, definition := range table.ColumnDefinitions {
		one.Columns = append(one.Columns, column{
			Name: definition.Name, Type: definition.Type, Format: definition.Format,
			Description: definition.Description, Priority: definition.Priority,
		})
	}
	return nil
}
