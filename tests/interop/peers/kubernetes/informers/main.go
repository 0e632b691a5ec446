// Command informers prints the events that the clients of client-go see of the ConfigMaps of a namespace, one line each:
// typed informers in JSON and in protobuf, a dynamic and a metadata informer, and a RetryWatcher. It ends when all of
// them saw the ConfigMap "end".
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	toolswatch "k8s.io/client-go/tools/watch"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// report prints the events of one client and closes done at the ConfigMap "end".
type report struct {
	client string
	done   chan struct{}
	once   sync.Once
}

func (r *report) print(event string, object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		event, object = event+"-UNKNOWN", unknown.Obj
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		fmt.Println(r.client, event, err)
		return
	}
	value := accessor.GetAnnotations()["value"]
	switch object := object.(type) {
	case *corev1.ConfigMap:
		value += "/" + object.Data["value"]
	case *unstructured.Unstructured:
		data, _, _ := unstructured.NestedString(object.Object, "data", "value")
		value += "/" + data
	}
	fmt.Println(r.client, event, accessor.GetName(), value)
	if accessor.GetName() == "end" {
		r.once.Do(func() { close(r.done) })
	}
}

func (r *report) OnAdd(object any, _ bool) { r.print("ADDED", object) }
func (r *report) OnUpdate(old, object any) {
	before, after := old.(metav1.Object), object.(metav1.Object)
	if before.GetResourceVersion() != after.GetResourceVersion() {
		r.print("MODIFIED", object)
	}
}
func (r *report) OnDelete(object any) { r.print("DELETED", object) }

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig")
	namespace := flag.String("namespace", "default", "namespace")
	flag.Parse()
	if err := run(context.Background(), *kubeconfig, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	var reports []*report
	start := func(name string, informer cache.SharedIndexInformer) error {
		r := &report{client: name, done: make(chan struct{})}
		reports = append(reports, r)
		if _, err := informer.AddEventHandler(r); err != nil {
			return err
		}
		go informer.Run(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return fmt.Errorf("%s does not sync", name)
		}
		return nil
	}
	for name, contentType := range map[string]string{"json": "application/json", "protobuf": protobuf} {
		copied := rest.CopyConfig(config)
		copied.ContentType = contentType
		copied.AcceptContentTypes = contentType + ",application/json"
		client, err := kubernetes.NewForConfig(copied)
		if err != nil {
			return err
		}
		factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
		if err := start(name, factory.Core().V1().ConfigMaps().Informer()); err != nil {
			return err
		}
	}
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	dynamicFactory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamicClient, 0, namespace, nil)
	if err := start("dynamic", dynamicFactory.ForResource(resource).Informer()); err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	metadataFactory := metadatainformer.NewFilteredSharedInformerFactory(metadataClient, 0, namespace, nil)
	if err := start("metadata", metadataFactory.ForResource(resource).Informer()); err != nil {
		return err
	}
	retrying, err := retryWatch(ctx, config, namespace)
	if err != nil {
		return err
	}
	reports = append(reports, retrying)
	fmt.Println("synced")
	for _, r := range reports {
		<-r.done
	}
	return nil
}

// retryWatch prints the changes after the current state.
func retryWatch(ctx context.Context, config *rest.Config, namespace string) (*report, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	source := &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, options)
		},
	}
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, source)
	if err != nil {
		return nil, err
	}
	r := &report{client: "retry", done: make(chan struct{})}
	go func() {
		for event := range watcher.ResultChan() {
			if event.Type == watch.Error {
				fmt.Println("retry ERROR", runtime.Object(event.Object))
				continue
			}
			r.print(string(event.Type), event.Object)
		}
	}()
	return r, nil
}
