package main

import (
	"encoding/json"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

type openapiAnswer struct {
	Error string `json:"error,omitempty"`
	V3    any    `json:"v3,omitempty"`
	V2    any    `json:"v2,omitempty"`
}

func (q *question) openapiAnswer() (*openapiAnswer, error) {
	text := q.Definition
	if len(text) == 0 {
		text = definitionOf(q.Schema)
	}
	internal, _, err := decodedDefinition(text)
	if err != nil {
		return &openapiAnswer{Error: err.Error()}, nil
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(internal, definition, nil); err != nil {
		return nil, err
	}
	version := q.Version
	if version == "" {
		version = definition.Spec.Versions[0].Name
	}
	v3, err := builder.BuildOpenAPIV3(definition, version, builder.Options{IncludeSelectableFields: true})
	if err != nil {
		return &openapiAnswer{Error: err.Error()}, nil
	}
	v2, err := builder.BuildOpenAPIV2(definition, version, builder.Options{V2: true, IncludeSelectableFields: true})
	if err != nil {
		return &openapiAnswer{Error: err.Error()}, nil
	}
	if q.Part != "schema" {
		return &openapiAnswer{V3: v3, V2: v2}, nil
	}
	answer := &openapiAnswer{}
	name := reversed(definition.Spec.Group) + "." + version + "." + definition.Spec.Names.Kind
	if answer.V3, err = ownPart(v3.Components.Schemas[name]); err != nil {
		return nil, err
	}
	schema := v2.Definitions[name]
	answer.V2, err = ownPart(&schema)
	return answer, err
}

// reversed is a group as models are named by it.
func reversed(group string) string {
	labels := strings.Split(group, ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

// ownPart is a schema without what the schemas of all kinds have.
func ownPart(schema *spec.Schema) (any, error) {
	text, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	part := parse(string(text)).(tree)
	if properties, isTree := part["properties"].(tree); isTree {
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			delete(properties, name)
		}
	}
	return part, nil
}

// publishedTables are the schemas of the hand-written cases that a definition can have.
func publishedTables() ([]question, error) {
	var cases []question
	seen := map[string]bool{}
	add := func(schema json.RawMessage) {
		if !seen[string(schema)] && len(schema) > 0 && isAccepted(schema, false) {
			seen[string(schema)] = true
			cases = append(cases, question{Op: "openapi", Part: "schema", Schema: schema})
		}
	}
	for _, tables := range []func() ([]question, error){structuralTables, objectTables} {
		tables, err := tables()
		if err != nil {
			return nil, err
		}
		for _, asked := range tables {
			add(asked.Schema)
		}
	}
	return cases, nil
}

func (g *generator) publishedCase() question {
	for {
		g.depth = 0
		if schema := raw(g.rootSchema()); len(schema) < 700 && isAccepted(schema, false) {
			return question{Op: "openapi", Part: "schema", Schema: schema}
		}
	}
}
