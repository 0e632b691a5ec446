package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

type manifest struct {
	list, name, object string
	// JSON merge patch of the status.
	status string
}

const namespace = "kinds-tables"

var in = "/api/v1/namespaces/" + namespace

// manifests are created in this order, and deleted with their namespace or by name.
var manifests = []manifest{
	{list: "/api/v1/namespaces", name: namespace, object: `{"metadata":{"name":"` + namespace + `"}}`},
	{list: in + "/configmaps", name: "none", object: `{"metadata":{"name":"none"}}`},
	{list: in + "/configmaps", name: "three", object: `{"metadata":{"name":"three"},"data":{"a":"1","b":"2"},"binaryData":{"c":"AA=="}}`},
	{list: in + "/secrets", name: "opaque", object: `{"metadata":{"name":"opaque"},"stringData":{"a":"1","b":"2"}}`},
	{list: in + "/secrets", name: "auth", object: `{"metadata":{"name":"auth"},"type":"kubernetes.io/basic-auth","stringData":{"username":"a"}}`},
	{list: in + "/serviceaccounts", name: "robot", object: `{"metadata":{"name":"robot"},"secrets":[{"name":"a"}]}`},
	{list: "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases", name: "held", object: `{"metadata":{"name":"held"},"spec":{"holderIdentity":"me","renewTime":"2026-01-02T03:04:05.000000Z"}}`},
	{list: "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases", name: "free", object: `{"metadata":{"name":"free"}}`},
	{list: in + "/services", name: "plain", object: `{"metadata":{"name":"plain"},"spec":{"selector":{"b":"2","a":"1"},"clusterIP":"10.0.0.77","ports":[{"name":"a","port":80},{"name":"b","port":53,"protocol":"UDP"}]}}`},
	{list: in + "/services", name: "headless", object: `{"metadata":{"name":"headless"},"spec":{"clusterIP":"None"}}`},
	{list: in + "/services", name: "external", object: `{"metadata":{"name":"external"},"spec":{"type":"ExternalName","externalName":"example.com"}}`},
	{list: in + "/services", name: "ips", object: `{"metadata":{"name":"ips"},"spec":{"externalIPs":["1.2.3.4","1.2.3.5"],"clusterIP":"10.0.0.78","ports":[{"port":80}]}}`},
	{list: in + "/services", name: "node", object: `{"metadata":{"name":"node"},"spec":{"type":"NodePort","clusterIP":"10.0.0.79","ports":[{"port":80,"nodePort":30080}]}}`},
	{list: in + "/services", name: "pending", object: `{"metadata":{"name":"pending"},"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.80","ports":[{"port":80,"nodePort":30081}]}}`},
	{list: in + "/services", name: "balanced", object: `{"metadata":{"name":"balanced"},"spec":{"type":"LoadBalancer","externalIPs":["9.8.7.6"],"clusterIP":"10.0.0.81","ports":[{"port":80,"nodePort":30082}]}}`,
		status: `{"status":{"loadBalancer":{"ingress":[{"ip":"5.6.7.8"},{"hostname":"a-long-name-of-a-load-balancer.example.com"},{"ip":"1.1.1.1"}]}}}`},
	{list: in + "/endpoints", name: "empty", object: `{"metadata":{"name":"empty"}}`},
	{list: in + "/endpoints", name: "no-ports", object: `{"metadata":{"name":"no-ports"},"subsets":[{"addresses":[{"ip":"10.1.0.1"},{"ip":"10.1.0.2"}]}]}`},
	{list: in + "/endpoints", name: "many", object: `{"metadata":{"name":"many"},"subsets":[{"addresses":[{"ip":"10.1.0.1"},{"ip":"10.1.0.2"}],"ports":[{"name":"a","port":80},{"name":"b","port":81}]},{"addresses":[{"ip":"fd00::1"}],"ports":[{"name":"a","port":82}]},{"notReadyAddresses":[{"ip":"10.1.0.9"}],"ports":[{"port":80}]}]}`},
	{list: in + "/endpoints", name: "six", object: `{"metadata":{"name":"six"},"subsets":[{"addresses":[{"ip":"fd00::1"},{"ip":"fd00::2"}],"ports":[{"port":80}]}]}`},
	{list: "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices", name: "unset", object: `{"metadata":{"name":"unset"},"addressType":"IPv4","endpoints":[]}`},
	{list: "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices", name: "two", object: `{"metadata":{"name":"two"},"addressType":"IPv4","endpoints":[{"addresses":["10.1.0.1"]},{"addresses":["10.1.0.2"]}],"ports":[{"name":"a","port":80},{"name":"b"},{"name":""}]}`},
	{list: "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices", name: "many", object: `{"metadata":{"name":"many"},"addressType":"IPv6","endpoints":[{"addresses":["fd00::1"]},{"addresses":["fd00::2"]},{"addresses":["fd00::3"]},{"addresses":["fd00::4"]},{"addresses":["fd00::5"]}],"ports":[{"name":"a","port":1},{"name":"b","port":2},{"name":"c","port":3},{"name":"d","port":4}]}`},
	{list: in + "/events", name: "old", object: `{"metadata":{"name":"old"},"involvedObject":{"kind":"Pod","name":"web","namespace":"` + namespace + `","fieldPath":"spec.containers{web}"},"reason":"Pulled","message":" pulled\n","type":"Normal","source":{"component":"kubelet","host":"node-1"},"firstTimestamp":"2026-01-02T03:04:05Z","lastTimestamp":"2026-11-01T03:04:05Z","count":7}`},
	{list: in + "/events", name: "bare", object: `{"metadata":{"name":"bare"},"involvedObject":{"kind":"Node","namespace":"` + namespace + `"}}`},
	{list: in + "/events", name: "first", object: `{"metadata":{"name":"first"},"involvedObject":{"namespace":"` + namespace + `"},"firstTimestamp":"2026-01-02T03:04:05Z"}`},
	{list: "/apis/events.k8s.io/v1/namespaces/" + namespace + "/events", name: "new", object: `{"metadata":{"name":"new"},"eventTime":"2026-06-02T03:04:05.500000Z","reportingController":"example.com/c","reportingInstance":"c-1","action":"Do","reason":"Done","type":"Warning","regarding":{"kind":"Pod","name":"web","namespace":"` + namespace + `"},"note":"new"}`},
	{list: "/apis/events.k8s.io/v1/namespaces/" + namespace + "/events", name: "series", object: `{"metadata":{"name":"series"},"eventTime":"2026-06-02T03:04:05.500000Z","series":{"count":9,"lastObservedTime":"2026-10-02T03:04:05.500000Z"},"reportingController":"example.com/c","reportingInstance":"c-1","action":"Do","reason":"Done","type":"Warning","regarding":{"kind":"Pod","name":"web","namespace":"` + namespace + `"}}`},
	{list: "/apis/apiregistration.k8s.io/v1/apiservices", name: "v1.tables.example.com", object: `{"metadata":{"name":"v1.tables.example.com"},"spec":{"group":"tables.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"name":"absent","namespace":"` + namespace + `"}}}`},
}

// tableCases are Tables with their objects, as a kube-apiserver prints them.
func tableCases(ctx context.Context, server *server) ([]byte, error) {
	defer func() {
		server.call(ctx, "DELETE", "/api/v1/namespaces/"+namespace, "application/json", nil, &json.RawMessage{})
		server.call(ctx, "DELETE", "/apis/apiregistration.k8s.io/v1/apiservices/v1.tables.example.com", "application/json", nil, &json.RawMessage{})
	}()
	for _, one := range manifests {
		var created map[string]any
		if _, err := server.call(ctx, "POST", one.list, "application/json", []byte(one.object), &created); err != nil {
			return nil, err
		}
		if one.status == "" {
			continue
		}
		var status map[string]any
		if err := json.Unmarshal([]byte(one.status), &status); err != nil {
			return nil, err
		}
		created["status"] = status["status"]
		text, err := json.Marshal(created)
		if err != nil {
			return nil, err
		}
		if _, err := server.call(ctx, "PUT", one.list+"/"+one.name+"/status", "application/json", text, &created); err != nil {
			return nil, err
		}
	}
	// The condition of the APIService is written by a controller, and ages should not all be zero.
	time.Sleep(3 * time.Second)

	var out bytes.Buffer
	for _, one := range manifests {
		var table struct {
			Rows []struct {
				Cells  []any          `json:"cells"`
				Object map[string]any `json:"object"`
			} `json:"rows"`
		}
		header, err := server.call(ctx, "GET", one.list+"/"+one.name+"?includeObject=Object", "application/json;as=Table;v=v1;g=meta.k8s.io", nil, &table)
		if err != nil {
			return nil, err
		}
		now, err := http.ParseTime(header.Get("Date"))
		if err != nil {
			return nil, err
		}
		if len(table.Rows) != 1 {
			return nil, fmt.Errorf("%s/%s has %d rows", one.list, one.name, len(table.Rows))
		}
		row := table.Rows[0]
		delete(row.Object["metadata"].(map[string]any), "managedFields")
		if err := writeLine(&out, map[string]any{"now": now.Format(time.RFC3339), "cells": row.Cells, "object": row.Object}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
