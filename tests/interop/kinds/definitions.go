package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
)

// definitionsContent is the content of the file of OpenAPI definitions.
type definitionsContent struct {
	// Parameters of requests as OpenAPI v2 has them, under the names that it shares them by.
	Parameters map[string]any `json:"parameters"`
	// Names of the parameters by x-kubernetes-action; "deletecollection" is that of a collection.
	Actions map[string][]string `json:"actions"`
	// Schemas as OpenAPI v3 has them.
	Definitions map[string]map[string]any `json:"definitions"`
}

type openapiIndex struct {
	Paths map[string]struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	} `json:"paths"`
}

type openapiV3 struct {
	Components struct {
		Schemas map[string]map[string]any `json:"schemas"`
	} `json:"components"`
}

type openapiV2 struct {
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Parameters map[string]any                        `json:"parameters"`
}

// The kind of requests and events that each group and version has: its kinds depend on the document.
var inEveryVersion = []string{
	"io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
}

const kindsExtension = "x-kubernetes-group-version-kind"

// definitions is the file of OpenAPI definitions: what a kube-apiserver publishes of its built-in kinds, compressed.
func definitions(ctx context.Context, server *server) ([]byte, error) {
	content := definitionsContent{
		Parameters: map[string]any{}, Actions: map[string][]string{}, Definitions: map[string]map[string]any{},
	}
	if err := content.readSchemas(ctx, server); err != nil {
		return nil, err
	}
	if err := content.readParameters(ctx, server); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	packer, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	encoder := json.NewEncoder(packer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(content); err != nil {
		return nil, err
	}
	if err := packer.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (c *definitionsContent) readSchemas(ctx context.Context, server *server) error {
	var index openapiIndex
	if _, err := server.call(ctx, "GET", "/openapi/v3", "application/json", nil, &index); err != nil {
		return err
	}
	var keys []string
	for key := range index.Paths {
		parts := strings.Split(key, "/")
		if key == "api/v1" || len(parts) == 3 && parts[0] == "apis" && isBuiltin(parts[1]) {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	for _, key := range keys {
		var document openapiV3
		if _, err := server.call(ctx, "GET", index.Paths[key].ServerRelativeURL, "application/json", nil, &document); err != nil {
			return err
		}
		for name, definition := range document.Components.Schemas {
			for _, common := range inEveryVersion {
				if name == common {
					delete(definition, kindsExtension)
				}
			}
			have, ok := c.Definitions[name]
			if ok && !equalJSON(have, definition) {
				return fmt.Errorf("%s differs between documents", name)
			}
			c.Definitions[name] = definition
		}
	}
	return nil
}

func equalJSON(a, b any) bool {
	first, err := json.Marshal(a)
	if err != nil {
		return false
	}
	second, err := json.Marshal(b)
	return err == nil && bytes.Equal(first, second)
}

func (c *definitionsContent) readParameters(ctx context.Context, server *server) error {
	var document openapiV2
	if _, err := server.call(ctx, "GET", "/openapi/v2", "application/json", nil, &document); err != nil {
		return err
	}
	const collection = "/api/v1/namespaces/{namespace}/configmaps"
	for path, actions := range map[string]map[string]string{
		collection:             {"get": "list", "post": "post", "delete": "deletecollection"},
		collection + "/{name}": {"get": "get", "put": "put", "patch": "patch", "delete": "delete"},
	} {
		item := document.Paths[path]
		if item == nil {
			return fmt.Errorf("OpenAPI v2 has no %s", path)
		}
		if _, err := c.addParameters(item["parameters"], document.Parameters); err != nil {
			return err
		}
		for method, action := range actions {
			var operation struct {
				Parameters json.RawMessage `json:"parameters"`
			}
			if err := json.Unmarshal(item[method], &operation); err != nil {
				return fmt.Errorf("%s %s: %w", method, path, err)
			}
			names, err := c.addParameters(operation.Parameters, document.Parameters)
			if err != nil {
				return err
			}
			c.Actions[action] = names
		}
	}
	return nil
}

// addParameters adds the parameters of a list and returns their names. The name of an object and a body of the kind are
// left out.
func (c *definitionsContent) addParameters(list json.RawMessage, shared map[string]any) ([]string, error) {
	names := []string{}
	if len(list) == 0 {
		return names, nil
	}
	var parameters []map[string]any
	if err := json.Unmarshal(list, &parameters); err != nil {
		return nil, err
	}
	for _, parameter := range parameters {
		name, _ := parameter["name"].(string)
		value := any(parameter)
		if reference, ok := parameter["$ref"].(string); ok {
			name = strings.TrimPrefix(reference, "#/parameters/")
			if value, ok = shared[name]; !ok {
				return nil, fmt.Errorf("OpenAPI v2 has no parameter %s", name)
			}
		} else if name == "name" || name == "body" {
			continue
		}
		c.Parameters[name] = value
		names = append(names, name)
	}
	return names, nil
}

// plain is the content of a compressed file, to be compared and shown.
func plain(content []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}
