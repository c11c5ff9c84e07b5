// The one place that imports the vendored view library.
import { Component, createContext, createRef, h, render } from "../vendor/preact.js";
import {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

/** Builds virtual nodes from a template; values become text and attributes, never markup. */
export const html = htm.bind(h);

export {
  Component,
  createContext,
  createRef,
  h,
  render,
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
};
