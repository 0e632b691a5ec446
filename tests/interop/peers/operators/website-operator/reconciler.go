package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "narthex/interop/operators/website-operator/v1"
)

const finalizer = "web.example.com/website"

// reconciler keeps a ConfigMap of the same name for every Website, and reports its address in the status.
type reconciler struct {
	client.Client
	recorder events.EventRecorder
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var website v1.Website
	if err := r.Get(ctx, request.NamespacedName, &website); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !website.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, &website)
	}
	if controllerutil.AddFinalizer(&website, finalizer) {
		if err := r.Update(ctx, &website); err != nil {
			return ctrl.Result{}, fmt.Errorf("adding the finalizer: %w", err)
		}
	}
	address := net.JoinHostPort(website.Spec.Host, strconv.Itoa(int(website.Spec.Port)))
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: website.Namespace, Name: website.Name}}
	result, err := controllerutil.CreateOrUpdate(ctx, r.Client, owned, func() error {
		owned.Data = map[string]string{"address": address}
		return controllerutil.SetControllerReference(&website, owned, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("writing the ConfigMap: %w", err)
	}
	if result == controllerutil.OperationResultCreated {
		r.recorder.Eventf(&website, owned, corev1.EventTypeNormal, "Created", "CreateConfigMap", "created ConfigMap %s", owned.Name)
	}
	return ctrl.Result{}, r.updateStatus(ctx, &website, address)
}

func (r *reconciler) updateStatus(ctx context.Context, website *v1.Website, address string) error {
	before := website.DeepCopyObject().(*v1.Website)
	website.Status.Address = address
	website.Status.ObservedGeneration = website.Generation
	changed := meta.SetStatusCondition(&website.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Served", Message: "served at " + address,
		ObservedGeneration: website.Generation,
	})
	if !changed && before.Status.Address == address && before.Status.ObservedGeneration == website.Generation {
		return nil
	}
	if err := r.Status().Update(ctx, website); err != nil {
		return fmt.Errorf("updating the status: %w", err)
	}
	log.FromContext(ctx).Info("served", "address", address)
	return nil
}

// finalize deletes the ConfigMap: the finalizer does not depend on garbage collection.
func (r *reconciler) finalize(ctx context.Context, website *v1.Website) error {
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: website.Namespace, Name: website.Name}}
	if err := client.IgnoreNotFound(r.Delete(ctx, owned)); err != nil {
		return fmt.Errorf("deleting the ConfigMap: %w", err)
	}
	before := client.MergeFrom(website.DeepCopyObject().(*v1.Website))
	if controllerutil.RemoveFinalizer(website, finalizer) {
		if err := client.IgnoreNotFound(r.Patch(ctx, website, before)); err != nil {
			return fmt.Errorf("removing the finalizer: %w", err)
		}
		log.FromContext(ctx).Info("finalized")
	}
	return nil
}
