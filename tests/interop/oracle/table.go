package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

type tableAnswer struct {
	Error   string                         `json:"error,omitempty"`
	Columns []metav1.TableColumnDefinition `json:"columns,omitempty"`
	Cells   []any                          `json:"cells"`
}

func (q *question) tableAnswer() (*tableAnswer, error) {
	// The default of upstream's handler.
	columns := []apiextensionsv1.CustomResourceColumnDefinition{{
		Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
	}}
	if len(q.Columns) > 0 {
		columns = nil
		if err := json.Unmarshal(q.Columns, &columns); err != nil {
			return nil, err
		}
	}
	now, err := time.Parse(time.RFC3339, q.Now)
	if err != nil {
		return nil, err
	}
	answer := &tableAnswer{}
	isRepeated := len(columns) > 0
	for _, column := range columns {
		isRepeated = isRepeated && column.Description == ""
	}
	convertor, err := tableconvertor.New(columns)
	if err != nil {
		answer.Error = err.Error()
	}
	table, err := tableOf(convertor, q.Object)
	if err != nil {
		return nil, err
	}
	answer.Columns = table.ColumnDefinitions[1:]
	answer.Cells = table.Rows[0].Cells
	for range tableRuns {
		again, err := tableOf(convertor, q.Object)
		if err != nil {
			return nil, err
		}
		if have, want := fmt.Sprint(again.Rows[0].Cells), fmt.Sprint(answer.Cells); have != want {
			return nil, unstableError{want, have}
		}
	}
	// Upstream's ages are relative to the clock, so they are taken of an object whose times have been moved.
	moved, err := tableOf(convertor, moveTimes(q.Object, time.Since(now)))
	if err != nil {
		return nil, err
	}
	for index, column := range answer.Columns {
		if column.Type == "date" {
			answer.Cells[index+1] = moved.Rows[0].Cells[index+1]
		}
	}
	if isBrief && isRepeated && answer.Error == "" {
		answer.Columns = nil
	}
	return answer, nil
}

func tableOf(convertor rest.TableConvertor, text json.RawMessage) (*metav1.Table, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	return convertor.ConvertToTable(context.Background(), object, &metav1.TableOptions{})
}

var times = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)"`)

func moveTimes(text json.RawMessage, by time.Duration) json.RawMessage {
	return times.ReplaceAllFunc(text, func(quoted []byte) []byte {
		at, err := time.Parse(`"`+time.RFC3339+`"`, string(quoted))
		if err != nil {
			return quoted
		}
		return []byte(at.Add(by).Format(`"` + time.RFC3339Nano + `"`))
	})
}

type patternAnswer struct {
	Error   string `json:"error,omitempty"`
	Matches []bool `json:"matches,omitempty"`
}

func (q *question) patternAnswer() (*patternAnswer, error) {
	compiled, err := regexp.Compile(*q.Pattern)
	if err != nil {
		return &patternAnswer{Error: err.Error()}, nil
	}
	answer := &patternAnswer{}
	for _, text := range q.Strings {
		answer.Matches = append(answer.Matches, compiled.MatchString(text))
	}
	return answer, nil
}

type formatAnswer struct {
	Recognized bool   `json:"recognized"`
	Accepted   []bool `json:"accepted"`
}

func (q *question) formatAnswer() (*formatAnswer, error) {
	valueType := q.Type
	if valueType == "" {
		valueType = "string"
	}
	schema := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{valueType}, Format: q.Format}}
	answer := &formatAnswer{
		Recognized: len(validation.GetUnrecognizedFormats(schema, environment.DefaultCompatibilityVersion())) == 0,
	}
	text, err := encode(map[string]string{"type": valueType, "format": q.Format})
	if err != nil {
		return nil, err
	}
	internal, err := internalSchema(text)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, err
	}
	for _, value := range q.Values {
		var decoded any
		if err := utiljson.Unmarshal(value, &decoded); err != nil {
			return nil, err
		}
		answer.Accepted = append(answer.Accepted, len(validation.ValidateCustomResource(nil, decoded, validator)) == 0)
	}
	return answer, nil
}
