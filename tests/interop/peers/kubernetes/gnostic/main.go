// Command gnostic reads an OpenAPI v2 document in JSON and in protobuf with the libraries of Kubernetes,
// and says whether both are the same to them. The JSON is read strictly, as gnostic does for its own.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

func main() {
	if err := compare(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func compare(jsonFile, protobufFile string) error {
	text, err := os.ReadFile(jsonFile)
	if err != nil {
		return err
	}
	strict, err := openapi_v2.ParseDocument(text)
	if err != nil {
		return fmt.Errorf("gnostic does not read the JSON: %w", err)
	}
	binary, err := os.ReadFile(protobufFile)
	if err != nil {
		return err
	}
	var decoded openapi_v2.Document
	if err := proto.Unmarshal(binary, &decoded); err != nil {
		return fmt.Errorf("the protobuf: %w", err)
	}
	expected, err := swagger(strict)
	if err != nil {
		return fmt.Errorf("the JSON as gnostic: %w", err)
	}
	found, err := swagger(&decoded)
	if err != nil {
		return fmt.Errorf("the protobuf as gnostic: %w", err)
	}
	if !bytes.Equal(expected, found) {
		at := 0
		for at < len(expected) && at < len(found) && expected[at] == found[at] {
			at++
		}
		from := max(0, at-200)
		return fmt.Errorf("not the same from byte %d on:\nJSON     %.400s\nprotobuf %.400s", at, expected[from:], found[from:])
	}
	fmt.Printf("%d paths, %d definitions, %d bytes of protobuf\n",
		len(decoded.GetPaths().GetPath()), len(decoded.GetDefinitions().GetAdditionalProperties()), len(binary))
	return nil
}

func swagger(document *openapi_v2.Document) ([]byte, error) {
	var swagger spec.Swagger
	if _, err := swagger.FromGnostic(document); err != nil {
		return nil, err
	}
	return json.Marshal(&swagger)
}
