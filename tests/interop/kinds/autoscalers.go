package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// autoscalersFile holds HorizontalPodAutoscalers of one version, and what they are in the other one.
const autoscalersFile = "src/resources/builtin/testdata/autoscalers.jsonl"

var autoscalerMetrics = []string{
	`{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}`,
	`{"type":"Resource","resource":{"name":"cpu","target":{"type":"AverageValue","averageValue":"0.5"}}}`,
	`{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":60}}}`,
	`{"type":"ContainerResource","containerResource":{"name":"cpu","container":"app","target":{"type":"Utilization","averageUtilization":60}}}`,
	`{"type":"Pods","pods":{"metric":{"name":"packets","selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"Exists"}]}},"target":{"type":"AverageValue","averageValue":"1k"}}}`,
	`{"type":"Object","object":{"describedObject":{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","name":"main"},"metric":{"name":"requests"},"target":{"type":"Value","value":"10k"}}}`,
	`{"type":"Object","object":{"describedObject":{"kind":"Service","name":"main"},"metric":{"name":"requests"},"target":{"type":"AverageValue","averageValue":"5"}}}`,
	`{"type":"External","external":{"metric":{"name":"queue","selector":{"matchLabels":{"a":"<b>"}}},"target":{"type":"AverageValue","averageValue":"30"}}}`,
	`{"type":"External","external":{"metric":{"name":"queue"},"target":{"type":"Value","value":"30"}}}`,
}

var autoscalerStatuses = []string{
	`{"currentReplicas":3,"desiredReplicas":4,"observedGeneration":2,"lastScaleTime":"2020-01-01T00:00:00Z","currentMetrics":[{"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":40,"averageValue":"400m"}}},{"type":"Pods","pods":{"metric":{"name":"packets"},"current":{"averageValue":"7"}}}],"conditions":[{"type":"AbleToScale","status":"True","lastTransitionTime":"2020-01-01T00:00:00Z","reason":"R","message":"<m>"},{"type":"ScalingActive","status":"False"}]}`,
	`{"desiredReplicas":4,"currentMetrics":[{"type":"Object","object":{"describedObject":{"kind":"Service","name":"main"},"metric":{"name":"requests"},"current":{"averageValue":"5"}}},{"type":"External","external":{"metric":{"name":"queue"},"current":{"value":"30"}}},{"type":"ContainerResource","containerResource":{"name":"cpu","container":"app","current":{"averageValue":"5"}}}]}`,
}

var autoscalerBehaviors = []string{
	`{"scaleUp":{"stabilizationWindowSeconds":30}}`,
	`{"scaleDown":{"selectPolicy":"Min","policies":[{"type":"Pods","value":4,"periodSeconds":60}],"tolerance":"0.1"}}`,
}

// autoscalerCases convert objects to the other version, and back.
func autoscalerCases() ([]byte, error) {
	var specs []string
	for i, metric := range autoscalerMetrics {
		specs = append(specs, `"metrics":[`+metric+`]`)
		if i > 0 {
			specs = append(specs, `"metrics":[`+metric+`,`+autoscalerMetrics[0]+`]`)
		}
	}
	for _, behavior := range autoscalerBehaviors {
		specs = append(specs, `"behavior":`+behavior)
	}
	var out bytes.Buffer
	for i, spec := range specs {
		status := autoscalerStatuses[i%len(autoscalerStatuses)]
		object := fmt.Sprintf(`{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a","namespace":"b","annotations":{"c":"d"}},"spec":{"maxReplicas":5,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"},%s},"status":%s}`, spec, status)
		first, err := autoscalerIn("v2", []byte(object))
		if err != nil {
			return nil, err
		}
		second, err := writeAutoscaler(&out, first, "v1")
		if err != nil {
			return nil, err
		}
		if _, err := writeAutoscaler(&out, second, "v2"); err != nil {
			return nil, err
		}
	}
	for _, fields := range []string{`"targetCPUUtilizationPercentage":70`, `"minReplicas":2`} {
		object := fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"a"},"spec":{"maxReplicas":5,"scaleTargetRef":{"kind":"Deployment","name":"web"},%s},"status":{"currentReplicas":1,"desiredReplicas":1,"currentCPUUtilizationPercentage":9}}`, fields)
		first, err := autoscalerIn("v1", []byte(object))
		if err != nil {
			return nil, err
		}
		if _, err := writeAutoscaler(&out, first, "v2"); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

func writeAutoscaler(out *bytes.Buffer, from json.RawMessage, version string) (json.RawMessage, error) {
	to, err := autoscalerIn(version, from)
	if err != nil {
		return nil, err
	}
	// As it is read back from the store.
	if to, err = autoscalerIn(version, to); err != nil {
		return nil, err
	}
	return to, writeLine(out, map[string]json.RawMessage{"from": from, "to": to})
}

// autoscalerIn decodes an object, and encodes it in a version.
func autoscalerIn(version string, object []byte) (json.RawMessage, error) {
	internal, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), object)
	if err != nil {
		return nil, err
	}
	converted, err := legacyscheme.Scheme.ConvertToVersion(internal, schema.GroupVersion{Group: "autoscaling", Version: version})
	if err != nil {
		return nil, err
	}
	return json.Marshal(converted)
}
